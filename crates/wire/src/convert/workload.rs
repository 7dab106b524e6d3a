//! `istio.workload.Workload` and the parts it shares with services.
//!
//! Elided fields get their defaults here: trust domain, service account, and a capacity of one.
//! Never guesses: a field that is present and not understood is an error.

use std::collections::BTreeMap;
use std::sync::Arc;

use ambit_model::identity::DEFAULT_SERVICE_ACCOUNT;
use ambit_model::names::{PolicyName, ServiceName};
use ambit_model::workload::{
    AppProtocol, ApplicationProtocol, ApplicationTunnel, GatewayAddress, GatewayDestination,
    Locality, PortMapping, Template, Tunnel, Workload, WorkloadKind,
};
use ambit_words::names::DEFAULT_TRUST_DOMAIN;

use super::{
    ConvertError, Problem, each, ip, ip_bytes, known, network_address, network_address_message,
    port, text,
};
use crate::proto::istio::workload as proto;

/// Extension of a workload that may reach only what is declared, whatever its content.
const REGISTRY_ONLY_EXTENSION: &str = "ambit.registry-only";
/// The capacity that is meant when none is given.
const DEFAULT_CAPACITY: u32 = 1;

impl TryFrom<proto::Workload> for Workload {
    type Error = ConvertError;

    fn try_from(message: proto::Workload) -> Result<Self, ConvertError> {
        if message.uid.is_empty() {
            return Err(ConvertError::new("uid", Problem::Missing));
        }
        let template = Template {
            namespace: text(&message.namespace),
            hostname: text(&message.hostname),
            network: text(&message.network),
            tunnel: tunnel(message.tunnel_protocol)?,
            trust_domain: text(or(&message.trust_domain, DEFAULT_TRUST_DOMAIN)),
            service_account: text(or(&message.service_account, DEFAULT_SERVICE_ACCOUNT)),
            waypoint: optional_gateway("waypoint", message.waypoint)?.map(Arc::new),
            network_gateway: optional_gateway("network_gateway", message.network_gateway)?
                .map(Arc::new),
            canonical_name: text(&message.canonical_name),
            canonical_revision: text(&message.canonical_revision),
            kind: kind(message.workload_type),
            native_tunnel: message.native_tunnel,
            application_tunnel: message.application_tunnel.map(application_tunnel).transpose()?,
            services: Arc::new(services(message.services)?),
            policies: policies(&message.authorization_policies)?,
            cluster_id: text(&message.cluster_id),
            host_network: host_network(message.network_mode)?,
            capacity: message.capacity.unwrap_or(DEFAULT_CAPACITY),
            registry_only: message.extensions.iter().any(|it| it.name == REGISTRY_ONLY_EXTENSION),
        };
        Ok(Self {
            uid: text(&message.uid),
            name: text(&message.name),
            addresses: each("addresses", &message.addresses, |bytes| ip(bytes))?.into(),
            workload_name: text(&message.workload_name),
            node: text(&message.node),
            locality: message.locality.as_ref().map(locality).map(Arc::new).unwrap_or_default(),
            healthy: message.status == proto::WorkloadStatus::Healthy as i32,
            template: Arc::new(template),
        })
    }
}

impl From<&Workload> for proto::Workload {
    fn from(workload: &Workload) -> Self {
        Self {
            uid: workload.uid.to_string(),
            name: workload.name.to_string(),
            namespace: workload.namespace.to_string(),
            addresses: workload.addresses.iter().copied().map(ip_bytes).collect(),
            hostname: workload.hostname.to_string(),
            network: workload.network.to_string(),
            tunnel_protocol: tunnel_message(workload.tunnel).into(),
            trust_domain: elide(&workload.trust_domain, DEFAULT_TRUST_DOMAIN),
            service_account: elide(&workload.service_account, DEFAULT_SERVICE_ACCOUNT),
            waypoint: workload.waypoint.as_deref().map(gateway_message),
            network_gateway: workload.network_gateway.as_deref().map(gateway_message),
            node: workload.node.to_string(),
            canonical_name: workload.canonical_name.to_string(),
            canonical_revision: workload.canonical_revision.to_string(),
            workload_type: kind_message(workload.kind).into(),
            workload_name: workload.workload_name.to_string(),
            native_tunnel: workload.native_tunnel,
            application_tunnel: workload.application_tunnel.map(application_tunnel_message),
            services: workload.services.iter().map(port_list_entry).collect(),
            authorization_policies: workload.policies.iter().map(ToString::to_string).collect(),
            status: status_message(workload.healthy).into(),
            cluster_id: workload.cluster_id.to_string(),
            locality: locality_message(&workload.locality),
            network_mode: network_mode_message(workload.host_network).into(),
            extensions: workload.registry_only.then(registry_only).into_iter().collect(),
            capacity: Some(workload.capacity).filter(|it| *it != DEFAULT_CAPACITY),
        }
    }
}

/// Absent unless it holds, so that other implementations see no extension.
fn registry_only() -> proto::Extension {
    proto::Extension { name: REGISTRY_ONLY_EXTENSION.to_owned(), config: None }
}

/// The value, or what is meant when it was elided.
fn or<'a>(value: &'a str, default: &'a str) -> &'a str {
    if value.is_empty() { default } else { value }
}

/// The inverse of [`or`]: defaults are not sent, so that equal workloads have equal bytes.
fn elide(value: &str, default: &str) -> String {
    if value == default { String::new() } else { value.to_owned() }
}

/// How a workload is reached decides what is encrypted: an unknown way is no way.
fn tunnel(value: i32) -> Result<Tunnel, ConvertError> {
    Ok(match known("tunnel_protocol", value)? {
        proto::TunnelProtocol::None => Tunnel::None,
        proto::TunnelProtocol::Hbone => Tunnel::Hbone,
        proto::TunnelProtocol::LegacyIstioMtls => Tunnel::LegacyIstioMtls,
    })
}

fn tunnel_message(tunnel: Tunnel) -> proto::TunnelProtocol {
    match tunnel {
        Tunnel::None => proto::TunnelProtocol::None,
        Tunnel::Hbone => proto::TunnelProtocol::Hbone,
        Tunnel::LegacyIstioMtls => proto::TunnelProtocol::LegacyIstioMtls,
    }
}

/// A label of telemetry only, so that a newer kind is no reason to refuse the workload.
fn kind(value: i32) -> WorkloadKind {
    match proto::WorkloadType::try_from(value) {
        Ok(proto::WorkloadType::Cronjob) => WorkloadKind::CronJob,
        Ok(proto::WorkloadType::Pod) => WorkloadKind::Pod,
        Ok(proto::WorkloadType::Job) => WorkloadKind::Job,
        Ok(proto::WorkloadType::Deployment) | Err(_) => WorkloadKind::Deployment,
    }
}

fn kind_message(kind: WorkloadKind) -> proto::WorkloadType {
    match kind {
        WorkloadKind::Deployment => proto::WorkloadType::Deployment,
        WorkloadKind::CronJob => proto::WorkloadType::Cronjob,
        WorkloadKind::Pod => proto::WorkloadType::Pod,
        WorkloadKind::Job => proto::WorkloadType::Job,
    }
}

/// Readiness; the protocol has no third state.
fn status_message(healthy: bool) -> proto::WorkloadStatus {
    if healthy { proto::WorkloadStatus::Healthy } else { proto::WorkloadStatus::Unhealthy }
}

/// Whether an address belongs to one workload decides who is behind it: never guessed.
fn host_network(value: i32) -> Result<bool, ConvertError> {
    Ok(match known("network_mode", value)? {
        proto::NetworkMode::Standard => false,
        proto::NetworkMode::HostNetwork => true,
    })
}

fn network_mode_message(host_network: bool) -> proto::NetworkMode {
    if host_network { proto::NetworkMode::HostNetwork } else { proto::NetworkMode::Standard }
}

fn locality(message: &proto::Locality) -> Locality {
    Locality {
        region: text(&message.region),
        zone: text(&message.zone),
        subzone: text(&message.subzone),
    }
}

/// A locality that says nothing is not sent.
fn locality_message(locality: &Locality) -> Option<proto::Locality> {
    (*locality != Locality::default()).then(|| proto::Locality {
        region: locality.region.to_string(),
        zone: locality.zone.to_string(),
        subzone: locality.subzone.to_string(),
    })
}

/// A policy whose name cannot be read could never arrive; refusing the workload says so.
fn policies(names: &[String]) -> Result<Vec<PolicyName>, ConvertError> {
    each("authorization_policies", names, |name| {
        name.parse().map_err(|error| ConvertError::new("name", Problem::Name(error)))
    })
}

/// The services a workload backs, by `namespace/hostname`; errors name the service.
fn services(
    message: BTreeMap<String, proto::PortList>,
) -> Result<BTreeMap<ServiceName, Vec<PortMapping>>, ConvertError> {
    let entry = |(key, list): (String, proto::PortList)| {
        let field = || format!("services[{key:?}]");
        let name: ServiceName =
            key.parse().map_err(|error| ConvertError::new(field(), Problem::Name(error)))?;
        let ports = each("ports", list.ports, port_mapping).map_err(|e| e.within(&field()))?;
        Ok((name, ports))
    };
    message.into_iter().map(entry).collect()
}

fn port_list_entry((name, ports): (&ServiceName, &Vec<PortMapping>)) -> (String, proto::PortList) {
    let ports = ports.iter().map(port_mapping_message).collect();
    (name.to_string(), proto::PortList { ports })
}

/// An application protocol is a hint: an unknown one is [`AppProtocol::Unknown`].
pub(super) fn port_mapping(message: proto::Port) -> Result<PortMapping, ConvertError> {
    Ok(PortMapping {
        service_port: port("service_port", message.service_port)?,
        target_port: port("target_port", message.target_port)?,
        app_protocol: match proto::AppProtocol::try_from(message.app_protocol) {
            Ok(proto::AppProtocol::Http11) => AppProtocol::Http11,
            Ok(proto::AppProtocol::Http2) => AppProtocol::Http2,
            Ok(proto::AppProtocol::Grpc) => AppProtocol::Grpc,
            Ok(proto::AppProtocol::Tcp) => AppProtocol::Tcp,
            Ok(proto::AppProtocol::Tls) => AppProtocol::Tls,
            Ok(proto::AppProtocol::Unknown) | Err(_) => AppProtocol::Unknown,
        },
    })
}

pub(super) fn port_mapping_message(port: &PortMapping) -> proto::Port {
    let app_protocol = match port.app_protocol {
        AppProtocol::Unknown => proto::AppProtocol::Unknown,
        AppProtocol::Http11 => proto::AppProtocol::Http11,
        AppProtocol::Http2 => proto::AppProtocol::Http2,
        AppProtocol::Grpc => proto::AppProtocol::Grpc,
        AppProtocol::Tcp => proto::AppProtocol::Tcp,
        AppProtocol::Tls => proto::AppProtocol::Tls,
    };
    proto::Port {
        service_port: port.service_port.into(),
        target_port: port.target_port.into(),
        app_protocol: app_protocol.into(),
    }
}

/// What an application expects before its first byte cannot be guessed; port 0 means that of the
/// request.
fn application_tunnel(
    message: proto::ApplicationTunnel,
) -> Result<ApplicationTunnel, ConvertError> {
    let within = |error: ConvertError| error.within("application_tunnel");
    let protocol = match known("protocol", message.protocol).map_err(within)? {
        proto::application_tunnel::Protocol::None => ApplicationProtocol::None,
        proto::application_tunnel::Protocol::Proxy => ApplicationProtocol::Proxy,
    };
    let port = port("port", message.port).map_err(within)?;
    Ok(ApplicationTunnel { protocol, port: Some(port).filter(|it| *it != 0) })
}

fn application_tunnel_message(tunnel: ApplicationTunnel) -> proto::ApplicationTunnel {
    let protocol = match tunnel.protocol {
        ApplicationProtocol::None => proto::application_tunnel::Protocol::None,
        ApplicationProtocol::Proxy => proto::application_tunnel::Protocol::Proxy,
    };
    proto::ApplicationTunnel {
        protocol: protocol.into(),
        port: tunnel.port.unwrap_or_default().into(),
    }
}

/// A waypoint or gateway that is there must be understood: without it, traffic would go around.
pub(super) fn optional_gateway(
    field: &str,
    message: Option<proto::GatewayAddress>,
) -> Result<Option<GatewayAddress>, ConvertError> {
    message.map(|it| gateway(it).map_err(|error| error.within(field))).transpose()
}

/// A gateway without destination or port cannot be reached, and is an error rather than none.
pub(super) fn gateway(message: proto::GatewayAddress) -> Result<GatewayAddress, ConvertError> {
    let destination = match message.destination {
        Some(proto::gateway_address::Destination::Hostname(name)) => {
            if name.hostname.is_empty() {
                return Err(ConvertError::new("hostname.hostname", Problem::Missing));
            }
            match &*name.namespace {
                "" => GatewayDestination::Refused(text(&name.hostname)),
                _ => GatewayDestination::Hostname(ServiceName::new(name.namespace, name.hostname)),
            }
        }
        Some(proto::gateway_address::Destination::Address(address)) => {
            GatewayDestination::Address(network_address(address).map_err(|e| e.within("address"))?)
        }
        None => return Err(ConvertError::new("destination", Problem::Missing)),
    };
    match port("hbone_mtls_port", message.hbone_mtls_port)? {
        0 => Err(ConvertError::new("hbone_mtls_port", Problem::Missing)),
        hbone_mtls_port => Ok(GatewayAddress { destination, hbone_mtls_port }),
    }
}

pub(super) fn gateway_message(gateway: &GatewayAddress) -> proto::GatewayAddress {
    let destination = match &gateway.destination {
        GatewayDestination::Hostname(name) => {
            proto::gateway_address::Destination::Hostname(proto::NamespacedHostname {
                namespace: name.namespace.to_string(),
                hostname: name.hostname.to_string(),
            })
        }
        GatewayDestination::Refused(name) => {
            proto::gateway_address::Destination::Hostname(proto::NamespacedHostname {
                namespace: String::new(),
                hostname: name.to_string(),
            })
        }
        GatewayDestination::Address(address) => {
            let message = network_address_message(address, None);
            proto::gateway_address::Destination::Address(message)
        }
    };
    proto::GatewayAddress {
        destination: Some(destination),
        hbone_mtls_port: gateway.hbone_mtls_port.into(),
    }
}
