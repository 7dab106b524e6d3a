//! `istio.workload.Service`.
//!
//! Client affinity and gateways that stand in for a waypoint have no fields of their own on the
//! wire; they travel as extensions that other implementations ignore. Other extensions are ignored
//! here.

use ipnet::IpNet;
use prost::Message;

use ambit_model::address::canonical_block;
use ambit_model::names::{NetworkAddress, ServiceName};
use ambit_model::service::{IpFamilies, LoadBalancing, Mode, Scope, Service, VirtualAddress};
use ambit_model::workload::GatewayAddress;

use super::workload::{
    gateway, gateway_message, optional_gateway, port_mapping, port_mapping_message,
};
use super::{
    ConvertError, Problem, decode, each, known, network_address, network_address_message,
    prefix_len, text, written_ip,
};
use crate::proto::Any;
use crate::proto::istio::workload as proto;
use proto::load_balancing as lb;

/// Extension that carries `client_affinity_seconds`, as a `google.protobuf.UInt32Value`.
pub const CLIENT_AFFINITY_EXTENSION: &str = "ambit.client-affinity-seconds";
/// Extension that carries one of a service's entrances, `NAMESPACE/HOSTNAME` of the gateway's own
/// service, as a `google.protobuf.StringValue`.
pub const ENTRANCE_EXTENSION: &str = "ambit.entrance";
const STRING_TYPE: &str = "type.googleapis.com/google.protobuf.StringValue";
const UINT32_TYPE: &str = "type.googleapis.com/google.protobuf.UInt32Value";

impl TryFrom<proto::Service> for Service {
    type Error = ConvertError;

    fn try_from(message: proto::Service) -> Result<Self, ConvertError> {
        if message.hostname.is_empty() {
            return Err(ConvertError::new("hostname", Problem::Missing));
        }
        let mut load_balancing = message.load_balancing.map(load_balancing).transpose()?;
        if let Some(seconds) = client_affinity(&message.extensions)? {
            load_balancing.get_or_insert_default().client_affinity_seconds = Some(seconds);
        }
        Ok(Self {
            name: text(&message.name),
            key: ServiceName::new(message.namespace, message.hostname),
            addresses: each("addresses", message.addresses, virtual_address)?,
            ports: each("ports", message.ports, port_mapping)?,
            subject_alt_names: message.subject_alt_names.iter().map(|san| text(san)).collect(),
            waypoint: optional_gateway("waypoint", message.waypoint)?,
            weighted_waypoints: each("weighted_waypoints", message.weighted_waypoints, weighted)?,
            entrances: entrances(&message.extensions)?,
            load_balancing: load_balancing.unwrap_or_default(),
            ip_families: ip_families(message.ip_families),
            canonical: message.canonical,
            ingress_use_waypoint: message.ingress_use_waypoint,
            // An unknown visibility is narrower than PUBLIC, or it would not be needed.
            namespace_only: message.visibility != proto::service::Visibility::Public as i32,
        })
    }
}

impl From<&Service> for proto::Service {
    fn from(service: &Service) -> Self {
        Self {
            name: service.name.to_string(),
            namespace: service.key.namespace.to_string(),
            hostname: service.key.hostname.to_string(),
            addresses: service.addresses.iter().map(virtual_address_message).collect(),
            ports: service.ports.iter().map(port_mapping_message).collect(),
            subject_alt_names: service.subject_alt_names.iter().map(ToString::to_string).collect(),
            waypoint: service.waypoint.as_ref().map(gateway_message),
            load_balancing: load_balancing_message(&service.load_balancing),
            ip_families: ip_families_message(service.ip_families).into(),
            extensions: extensions(service),
            canonical: service.canonical,
            ingress_use_waypoint: service.ingress_use_waypoint,
            weighted_waypoints: service.weighted_waypoints.iter().map(weighted_message).collect(),
            visibility: visibility_message(service.namespace_only).into(),
        }
    }
}

/// An address, or a block of them when it has a length.
fn virtual_address(message: proto::NetworkAddress) -> Result<VirtualAddress, ConvertError> {
    let Some(length) = message.length else {
        return Ok(VirtualAddress { address: network_address(message)?, prefix_len: None });
    };
    let ip = written_ip(&message.address)?;
    let length = prefix_len(ip, length)?;
    let block = IpNet::new(ip, length).expect("the length fits the address");
    // What cannot be read as IPv4 is a block of IPv6, which no IPv4 address is in.
    let block = canonical_block(block).unwrap_or(block);
    let address = NetworkAddress::new(message.network, block.addr());
    Ok(VirtualAddress { address, prefix_len: Some(block.prefix_len()) })
}

fn virtual_address_message(address: &VirtualAddress) -> proto::NetworkAddress {
    network_address_message(&address.address, address.prefix_len)
}

/// A share without a waypoint would send its part of the traffic around all of them.
fn weighted(message: proto::WeightedWaypoint) -> Result<(GatewayAddress, u32), ConvertError> {
    match message.destination {
        Some(destination) => {
            let destination = gateway(destination).map_err(|error| error.within("destination"))?;
            Ok((destination, message.weight))
        }
        None => Err(ConvertError::new("destination", Problem::Missing)),
    }
}

fn weighted_message((gateway, weight): &(GatewayAddress, u32)) -> proto::WeightedWaypoint {
    proto::WeightedWaypoint { destination: Some(gateway_message(gateway)), weight: *weight }
}

/// Unknown modes and scopes are errors: STRICT with a scope left out would leave the locality.
fn load_balancing(message: proto::LoadBalancing) -> Result<LoadBalancing, ConvertError> {
    let within = |error: ConvertError| error.within("load_balancing");
    let mode = match known("mode", message.mode).map_err(within)? {
        lb::Mode::UnspecifiedMode => Mode::Unspecified,
        lb::Mode::Strict => Mode::Strict,
        lb::Mode::Failover => Mode::Failover,
        lb::Mode::Passthrough => Mode::Passthrough,
    };
    let allow_unhealthy = match known("health_policy", message.health_policy).map_err(within)? {
        lb::HealthPolicy::OnlyHealthy => false,
        lb::HealthPolicy::AllowAll => true,
    };
    let routing_preference =
        each("routing_preference", message.routing_preference, scope).map_err(within)?;
    Ok(LoadBalancing { routing_preference, mode, allow_unhealthy, client_affinity_seconds: None })
}

/// A policy that says nothing is not sent.
fn load_balancing_message(it: &LoadBalancing) -> Option<proto::LoadBalancing> {
    let message = proto::LoadBalancing {
        routing_preference: it
            .routing_preference
            .iter()
            .map(|s| scope_message(*s).into())
            .collect(),
        mode: mode_message(it.mode).into(),
        health_policy: if it.allow_unhealthy {
            lb::HealthPolicy::AllowAll.into()
        } else {
            lb::HealthPolicy::OnlyHealthy.into()
        },
    };
    (message != proto::LoadBalancing::default()).then_some(message)
}

/// `UNSPECIFIED_SCOPE` names no scope and is therefore as wrong as an unknown one.
fn scope(value: i32) -> Result<Scope, ConvertError> {
    Ok(match known("scope", value)? {
        lb::Scope::UnspecifiedScope => return Err(ConvertError::new("scope", Problem::Missing)),
        lb::Scope::Region => Scope::Region,
        lb::Scope::Zone => Scope::Zone,
        lb::Scope::Subzone => Scope::Subzone,
        lb::Scope::Node => Scope::Node,
        lb::Scope::Cluster => Scope::Cluster,
        lb::Scope::Network => Scope::Network,
    })
}

fn scope_message(scope: Scope) -> lb::Scope {
    match scope {
        Scope::Region => lb::Scope::Region,
        Scope::Zone => lb::Scope::Zone,
        Scope::Subzone => lb::Scope::Subzone,
        Scope::Node => lb::Scope::Node,
        Scope::Cluster => lb::Scope::Cluster,
        Scope::Network => lb::Scope::Network,
    }
}

fn mode_message(mode: Mode) -> lb::Mode {
    match mode {
        Mode::Unspecified => lb::Mode::UnspecifiedMode,
        Mode::Strict => lb::Mode::Strict,
        Mode::Failover => lb::Mode::Failover,
        Mode::Passthrough => lb::Mode::Passthrough,
    }
}

/// A hint for DNS: what is unknown is inferred from the addresses.
fn ip_families(value: i32) -> IpFamilies {
    match proto::IpFamilies::try_from(value) {
        Ok(proto::IpFamilies::Ipv4Only) => IpFamilies::Ipv4Only,
        Ok(proto::IpFamilies::Ipv6Only) => IpFamilies::Ipv6Only,
        Ok(proto::IpFamilies::Dual) => IpFamilies::Dual,
        Ok(proto::IpFamilies::Automatic) | Err(_) => IpFamilies::Automatic,
    }
}

fn ip_families_message(families: IpFamilies) -> proto::IpFamilies {
    match families {
        IpFamilies::Automatic => proto::IpFamilies::Automatic,
        IpFamilies::Ipv4Only => proto::IpFamilies::Ipv4Only,
        IpFamilies::Ipv6Only => proto::IpFamilies::Ipv6Only,
        IpFamilies::Dual => proto::IpFamilies::Dual,
    }
}

fn visibility_message(namespace_only: bool) -> proto::service::Visibility {
    if namespace_only {
        proto::service::Visibility::Namespace
    } else {
        proto::service::Visibility::Public
    }
}

/// Reads [`CLIENT_AFFINITY_EXTENSION`].
fn client_affinity(extensions: &[proto::Extension]) -> Result<Option<u32>, ConvertError> {
    let extension = extensions.iter().find(|it| it.name == CLIENT_AFFINITY_EXTENSION);
    extension.map(|it| value(it, UINT32_TYPE)).transpose()
}

/// Reads each [`ENTRANCE_EXTENSION`].
fn entrances(extensions: &[proto::Extension]) -> Result<Vec<ServiceName>, ConvertError> {
    let named = extensions.iter().filter(|it| it.name == ENTRANCE_EXTENSION);
    let read = named.map(|it| {
        let name: String = value(it, STRING_TYPE)?;
        let field = format!("extensions[{ENTRANCE_EXTENSION:?}].config");
        name.parse().map_err(|error| ConvertError::new(field, Problem::Name(error)))
    });
    read.collect()
}

/// The value of an extension; one of another type is an error.
fn value<T: Message + Default>(
    extension: &proto::Extension,
    type_url: &str,
) -> Result<T, ConvertError> {
    let field = format!("extensions[{:?}].config", extension.name);
    let Some(config) = &extension.config else {
        return Err(ConvertError::new(field, Problem::Missing));
    };
    if config.type_url != type_url {
        return Err(ConvertError::new(field, Problem::TypeMismatch(config.type_url.clone())));
    }
    decode::<T>(&*config.value).map_err(|error| error.within(&field))
}

/// None unless something is wanted that has no field, so that other implementations see none.
fn extensions(service: &Service) -> Vec<proto::Extension> {
    let extension = |name: &str, type_url: &str, value: Vec<u8>| proto::Extension {
        name: name.to_owned(),
        config: Some(Any { type_url: type_url.to_owned(), value: value.into() }),
    };
    let seconds = service.load_balancing.client_affinity_seconds;
    let affinity =
        seconds.map(|it| extension(CLIENT_AFFINITY_EXTENSION, UINT32_TYPE, it.encode_to_vec()));
    let entrances = service
        .entrances
        .iter()
        .map(|it| extension(ENTRANCE_EXTENSION, STRING_TYPE, it.to_string().encode_to_vec()));
    affinity.into_iter().chain(entrances).collect()
}
