//! Rules for ServiceEntry and WorkloadEntry.
//!
//! Hosts, resolution and endpoints must fit one another; a combination that Istio accepts and that
//! cannot work without a sidecar is refused with the alternative.

use std::collections::BTreeSet;

use ambit_model::address::not_for_entries;

use super::core::{number, one_of};
use super::names::{self, require};
use crate::finding::{Issues, Path};
use crate::istio::{Resolution, ServiceEntrySpec, ServicePort, WorkloadEntrySpec};

/// Most hosts of one ServiceEntry, as in Istio's schema.
const HOSTS_MAX: usize = 256;
/// Protocols of a port, in upper case.
const PROTOCOLS: &[&str] =
    &["TCP", "TLS", "HTTP", "HTTP2", "HTTPS", "GRPC", "GRPC-WEB", "MONGO", "MYSQL", "REDIS", "UDP"];

/// Checks a ServiceEntry of this namespace.
pub(crate) fn service_entry(
    spec: &ServiceEntrySpec,
    namespace: &str,
    at: &Path,
    issues: &mut Issues,
) {
    hosts(spec, at, issues);
    names_of_others(spec, namespace, &at.field("hosts"), issues);
    let resolution = spec.resolution.unwrap_or(Resolution::None);
    for (index, address) in spec.addresses.iter().enumerate() {
        let at = at.field("addresses").index(index);
        let Some(block) = names::address_block(address) else {
            let what = names::not_a_block(address).unwrap_or_default();
            issues.error(&at, what, "write it as in `10.0.0.1` or `10.0.0.0/8`");
            continue;
        };
        if let Some(why) = not_for_entries(block.addr()) {
            issues.error(&at, format!("`{address}` {why}"), "write an address that all share");
        }
        if block.prefix_len() < block.max_prefix_len() && resolution != Resolution::None {
            issues.error(
                &at,
                "a whole block of addresses has no endpoints of its own",
                "use `resolution: NONE`, or name single addresses",
            );
        }
    }
    ports(&spec.ports, &at.field("ports"), issues);
    endpoints(spec, resolution, at, issues);
    for (index, namespace) in spec.export_to.iter().enumerate() {
        if !matches!(namespace.as_str(), "*" | "." | "~") {
            require(issues, &at.field("exportTo").index(index), names::dns_label, namespace);
        }
    }
}

fn hosts(spec: &ServiceEntrySpec, at: &Path, issues: &mut Issues) {
    let at = at.field("hosts");
    if spec.hosts.is_empty() || spec.hosts.len() > HOSTS_MAX {
        let what =
            format!("a ServiceEntry has 1 to {HOSTS_MAX} hosts, here are {}", spec.hosts.len());
        issues.error(&at, what, "list its DNS names");
    }
    let resolves =
        !matches!(spec.resolution, None | Some(Resolution::None | Resolution::DynamicDns));
    for (index, host) in spec.hosts.iter().enumerate() {
        require(issues, &at.index(index), names::host, host);
        if host.starts_with("*.") && resolves {
            issues.error(
                &at.index(index),
                format!("the endpoints of the wildcard `{host}` cannot be known"),
                "use `resolution: NONE`, or list the hosts",
            );
        }
    }
}

/// Hosts that are names of Services of another namespace: `service.namespace.svc`, with or without
/// the cluster's domain.
fn names_of_others(spec: &ServiceEntrySpec, own: &str, at: &Path, issues: &mut Issues) {
    for (index, host) in spec.hosts.iter().enumerate() {
        let labels: Vec<&str> = host.split('.').collect();
        let [_, namespace, "svc", ..] = labels[..] else { continue };
        if namespace != own {
            issues.warn(
                &at.index(index),
                format!(
                    "`{host}` is a name of namespace `{namespace}`, whose Services come before \
                     the entry in other namespaces than the entry's"
                ),
                format!("use a name outside of the cluster, or put the entry into `{namespace}`"),
            );
        }
    }
}

fn ports(ports: &[ServicePort], at: &Path, issues: &mut Issues) {
    if ports.is_empty() {
        issues.error(at, "a ServiceEntry needs a port", "list number, name and protocol");
    }
    let (mut names_seen, mut numbers_seen) = (BTreeSet::new(), BTreeSet::new());
    for (index, port) in ports.iter().enumerate() {
        let at = at.index(index);
        number(i64::from(port.number), &at.field("number"), issues);
        if port.target_port != 0 {
            number(i64::from(port.target_port), &at.field("targetPort"), issues);
        }
        if port.name.is_empty() {
            issues.error(&at.field("name"), "the port has no name", "add a name");
        } else {
            require(issues, &at.field("name"), names::dns_label, &port.name);
        }
        if !port.protocol.is_empty() {
            let protocol = port.protocol.to_uppercase();
            one_of(Some(&protocol), PROTOCOLS, &at.field("protocol"), issues);
        }
        if !names_seen.insert(&port.name) || !numbers_seen.insert(port.number) {
            issues.error(&at, "name and number of a port must be unique", "change one of the two");
        }
    }
}

fn endpoints(spec: &ServiceEntrySpec, resolution: Resolution, at: &Path, issues: &mut Issues) {
    let selects = spec.workload_selector.is_some();
    let listed = !spec.endpoints.is_empty();
    let at_list = at.field("endpoints");
    if let Some(selector) = &spec.workload_selector {
        let at = at.field("workloadSelector").field("labels");
        if selector.labels.is_empty() {
            issues.error(&at, "the selector is empty", "name labels of the endpoints");
        }
        super::labels(&selector.labels, &at, issues);
    }
    if selects && listed {
        issues.error(&at_list, "endpoints are either listed or selected", "remove one of the two");
    }
    match resolution {
        Resolution::Static if !selects && !listed => issues.error(
            &at_list,
            "with `resolution: STATIC` there must be endpoints",
            "list them, or add a workloadSelector",
        ),
        Resolution::None | Resolution::DynamicDns if listed => issues.error(
            &at_list,
            "endpoints are only used with `resolution: STATIC` or `DNS`",
            "set the resolution, or remove the endpoints",
        ),
        _ => {}
    }
    let known: BTreeSet<&str> = spec.ports.iter().map(|port| port.name.as_str()).collect();
    for (index, endpoint) in spec.endpoints.iter().enumerate() {
        let at = at_list.index(index);
        self::endpoint(endpoint, resolution == Resolution::Static, &at, issues);
        for name in endpoint.ports.keys().filter(|name| !known.contains(name.as_str())) {
            issues.error(
                &at.field("ports").field(name),
                format!("the ServiceEntry has no port called `{name}`"),
                "use a name from spec.ports",
            );
        }
    }
}

/// Checks a WorkloadEntry.
pub(crate) fn workload_entry(spec: &WorkloadEntrySpec, at: &Path, issues: &mut Issues) {
    endpoint(spec, true, at, issues);
}

fn endpoint(spec: &WorkloadEntrySpec, needs_ip: bool, at: &Path, issues: &mut Issues) {
    let ip = names::address(&spec.address);
    let at_address = at.field("address");
    if spec.address.is_empty() {
        issues.error(&at_address, "the address is missing", "write an IP address");
    } else if spec.address.starts_with("unix:") {
        issues.error(
            &at_address,
            "a unix socket cannot be reached from another network namespace",
            "write an IP address",
        );
    } else if let Some(ip) = ip {
        if let Some(why) = not_for_entries(ip) {
            let what = format!("`{}` {why}", spec.address);
            issues.error(&at_address, what, "write the address of the endpoint's machine");
        }
    } else if needs_ip {
        let what = format!("`{}` is not an IP address", spec.address);
        issues.error(&at_address, what, "write an IP address, or use `resolution: DNS`");
    } else {
        require(issues, &at_address, names::host, &spec.address);
    }
    for (name, port) in &spec.ports {
        number(i64::from(*port), &at.field("ports").field(name), issues);
    }
    super::labels(&spec.labels, &at.field("labels"), issues);
    if !spec.service_account.is_empty() {
        let at = at.field("serviceAccount");
        require(issues, &at, names::dns_subdomain, &spec.service_account);
    }
    if spec.weight == Some(0) {
        let at = at.field("weight");
        issues.error(
            &at,
            "a weight of 0 takes no traffic",
            "use 1 or more, or remove the endpoint",
        );
    }
}
