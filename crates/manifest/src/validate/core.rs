//! Rules for Service, EndpointSlice, ConfigMap and Secret.
//!
//! A Service that Kubernetes would refuse is refused. One that Kubernetes accepts and the mesh
//! cannot carry (ExternalName) is refused too, with an explanation, because it would silently
//! bypass the mesh.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ambit_model::address::not_for_entries;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service, ServicePort, ServiceSpec};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::names::{self, require};
use crate::finding::{Issues, Path};

/// Most bytes that the values of a ConfigMap or Secret may have together.
const DATA_SIZE_MAX_BYTES: usize = 1 << 20;
/// Longest session affinity.
const AFFINITY_MAX_SECONDS: i32 = 86_400;

/// Checks a Service.
pub(crate) fn service(service: &Service, issues: &mut Issues) {
    let at = Path::at("spec");
    let Some(spec) = &service.spec else {
        return issues.error(&at, "a Service needs a spec", "add `spec.ports` and `spec.selector`");
    };
    if spec.type_.as_deref() == Some("ExternalName") {
        return issues.error(
            &at.field("type"),
            "an ExternalName is a DNS alias: its traffic has no Service address that the mesh \
             could carry",
            "use a ServiceEntry with `resolution: DNS`, or let clients use the name itself",
        );
    }
    super::labels(spec.selector.iter().flatten(), &at.field("selector"), issues);
    service_kind(spec, &at, issues);
    service_ports(spec, &at, issues);
    affinity(spec, &at, issues);
    one_of(
        spec.internal_traffic_policy.as_deref(),
        &["Cluster", "Local"],
        &at.field("internalTrafficPolicy"),
        issues,
    );
    one_of(
        spec.traffic_distribution.as_deref(),
        &["PreferClose", "PreferSameZone", "PreferSameNode"],
        &at.field("trafficDistribution"),
        issues,
    );
}

fn service_kind(spec: &ServiceSpec, at: &Path, issues: &mut Issues) {
    let kinds = ["ClusterIP", "NodePort", "LoadBalancer"];
    one_of(spec.type_.as_deref(), &kinds, &at.field("type"), issues);
    let ips = spec.cluster_ip.iter().chain(spec.cluster_ips.iter().flatten());
    for ip in ips.filter(|ip| !ip.is_empty() && *ip != "None") {
        if ip.parse::<IpAddr>().is_err() {
            issues.error(
                &at.field("clusterIP"),
                format!("`{ip}` is not an IP address"),
                "use an address, `None` for a headless Service, or leave it out",
            );
        }
    }
    one_of(
        spec.ip_family_policy.as_deref(),
        &["SingleStack", "PreferDualStack", "RequireDualStack"],
        &at.field("ipFamilyPolicy"),
        issues,
    );
    for (index, family) in spec.ip_families.iter().flatten().enumerate() {
        one_of(Some(family), &["IPv4", "IPv6"], &at.field("ipFamilies").index(index), issues);
    }
}

fn service_ports(spec: &ServiceSpec, at: &Path, issues: &mut Issues) {
    let at = at.field("ports");
    let ports = spec.ports.as_deref().unwrap_or_default();
    if ports.is_empty() && spec.cluster_ip.as_deref() != Some("None") {
        issues.error(&at, "a Service with an address needs a port", "list at least one port");
    }
    let (mut names_seen, mut numbers_seen) = (BTreeSet::new(), BTreeSet::new());
    for (index, port) in ports.iter().enumerate() {
        let at = at.index(index);
        service_port(port, &at, issues);
        match port.name.as_deref() {
            Some(name) if !names_seen.insert(name) => issues.error(
                &at.field("name"),
                format!("two ports are called `{name}`"),
                "give each port its own name",
            ),
            None if ports.len() > 1 => issues.error(
                &at.field("name"),
                "a Service with several ports must name each of them",
                "add a name",
            ),
            _ => {}
        }
        let protocol = port.protocol.as_deref().unwrap_or("TCP");
        if !numbers_seen.insert((protocol, port.port)) {
            issues.error(
                &at.field("port"),
                format!("port {} is listed twice for {protocol}", port.port),
                "remove one of the two",
            );
        }
    }
}

fn service_port(port: &ServicePort, at: &Path, issues: &mut Issues) {
    if let Some(name) = &port.name {
        require(issues, &at.field("name"), names::dns_label, name);
    }
    number(i64::from(port.port), &at.field("port"), issues);
    one_of(port.protocol.as_deref(), &["TCP", "UDP", "SCTP"], &at.field("protocol"), issues);
    match &port.target_port {
        Some(IntOrString::Int(target)) => {
            number(i64::from(*target), &at.field("targetPort"), issues);
        }
        Some(IntOrString::String(name)) => {
            require(issues, &at.field("targetPort"), names::port_name, name);
        }
        None => {}
    }
}

/// Checks an EndpointSlice.
pub(crate) fn endpoint_slice(slice: &EndpointSlice, issues: &mut Issues) {
    let families = ["IPv4", "IPv6", "FQDN"];
    one_of(Some(&slice.address_type), &families, &Path::at("addressType"), issues);
    let at = Path::at("endpoints");
    for (index, endpoint) in slice.endpoints.iter().flatten().enumerate() {
        let at = at.index(index).field("addresses");
        if endpoint.addresses.is_empty() {
            issues.error(&at, "the endpoint has no address", "write one");
        }
        for (index, address) in endpoint.addresses.iter().enumerate() {
            slice_address(&slice.address_type, address, &at.index(index), issues);
        }
    }
    let (at, mut seen) = (Path::at("ports"), BTreeSet::new());
    for (index, port) in slice.ports.iter().flatten().enumerate() {
        let at = at.index(index);
        let name = port.name.as_deref().unwrap_or_default();
        if !seen.insert(name) {
            let what = format!("two ports are called `{name}`");
            issues.error(&at.field("name"), what, "give each the name of the Service's port");
        }
        if let Some(port) = port.port {
            number(i64::from(port), &at.field("port"), issues);
        }
        one_of(port.protocol.as_deref(), &["TCP", "UDP", "SCTP"], &at.field("protocol"), issues);
    }
}

fn slice_address(address_type: &str, address: &str, at: &Path, issues: &mut Issues) {
    let ip: Result<IpAddr, _> = address.parse();
    let fits = match address_type {
        "IPv4" => ip.as_ref().is_ok_and(IpAddr::is_ipv4),
        "IPv6" => ip.as_ref().is_ok_and(IpAddr::is_ipv6),
        _ => true,
    };
    if !fits {
        let what = format!("`{address}` is no {address_type} address");
        issues.error(at, what, "correct it, or the addressType");
    } else if let Some(why) = ip.ok().and_then(not_for_entries) {
        let what = format!("`{address}` {why}");
        issues.error(at, what, "write an address that all clients can reach");
    }
}

fn affinity(spec: &ServiceSpec, at: &Path, issues: &mut Issues) {
    let kinds = ["None", "ClientIP"];
    one_of(spec.session_affinity.as_deref(), &kinds, &at.field("sessionAffinity"), issues);
    let client_ip =
        spec.session_affinity_config.as_ref().and_then(|config| config.client_ip.as_ref());
    let Some(seconds) = client_ip.and_then(|client_ip| client_ip.timeout_seconds) else { return };
    if !(1..=AFFINITY_MAX_SECONDS).contains(&seconds) {
        issues.error(
            &at.field("sessionAffinityConfig.clientIP.timeoutSeconds"),
            format!("{seconds} is not between 1 and {AFFINITY_MAX_SECONDS}"),
            "write a number of seconds in that range",
        );
    }
}

/// Checks a ConfigMap.
pub(crate) fn config_map(map: &ConfigMap, issues: &mut Issues) {
    let text = map.data.iter().flatten().map(|(key, value)| ("data", key, value.len()));
    let binary = map.binary_data.iter().flatten();
    let binary = binary.map(|(key, value)| ("binaryData", key, value.0.len()));
    data(text.chain(binary), issues);
}

/// Checks a Secret. Values are never part of a message.
pub(crate) fn secret(secret: &Secret, issues: &mut Issues) {
    let data_entries = secret.data.iter().flatten();
    data(data_entries.map(|(key, value)| ("data", key, value.0.len())), issues);
    // A key of stringData replaces the same key of data, as in the API server.
    let texts = secret.string_data.iter().flatten();
    data(texts.map(|(key, value)| ("stringData", key, value.len())), issues);
}

fn data<'a>(entries: impl Iterator<Item = (&'static str, &'a String, usize)>, issues: &mut Issues) {
    let mut size = 0;
    let mut seen = BTreeSet::new();
    for (field, key, length) in entries {
        let at = Path::at(field).field(key);
        require(issues, &at, names::data_key, key);
        if !seen.insert(key) {
            issues.error(&at, format!("the key `{key}` is in `data` too"), "remove one of the two");
        }
        size += length;
        if size > DATA_SIZE_MAX_BYTES {
            return issues.error(
                &at,
                format!("the values have more than {DATA_SIZE_MAX_BYTES} bytes together"),
                "split the object",
            );
        }
    }
}

/// Reports `value` at `at` unless it is absent or one of `allowed`.
pub(crate) fn one_of(value: Option<&str>, allowed: &[&str], at: &Path, issues: &mut Issues) {
    if let Some(value) = value
        && !allowed.contains(&value)
    {
        let remedy = format!("use one of {}", allowed.join(", "));
        issues.error(at, format!("`{value}` is not a known value"), remedy);
    }
}

/// Reports a port that is not between 1 and 65535.
pub(crate) fn number(number: i64, at: &Path, issues: &mut Issues) {
    if let Some(what) = names::port_number(number) {
        issues.error(at, what, "write a port number in that range");
    }
}
