//! The whole of one proxy's configuration.

use std::net::Ipv4Addr;

use serde_json::{Value, json};

use super::super::authority::Credentials;
use super::super::topology::{Pod, Topology};
use super::{PORTS, cluster, extension, listener, socket_address};

/// The names of the static secrets, those of Istio's.
pub(super) const CERTIFICATE: &str = "default";
pub(super) const ROOT: &str = "ROOTCA";

/// A sidecar's.
pub(super) fn write(
    topology: &Topology,
    pod: &Pod,
    credentials: &Credentials,
    root_pem: &str,
) -> Value {
    let (listeners, clusters) = (listener::all(topology, pod), cluster::all(topology, pod));
    around(pod, "sidecar", credentials, root_pem, &listeners, &clusters)
}

/// What a proxy of this kind has around its listeners and clusters.
pub(super) fn around(
    pod: &Pod,
    kind: &str,
    credentials: &Credentials,
    root_pem: &str,
    listeners: &[Value],
    clusters: &[Value],
) -> Value {
    let address = pod.addresses.first().map(ToString::to_string).unwrap_or_default();
    let name = format!("{}.{}", pod.name, pod.namespace);
    json!({
        "node": {
            "id": format!("{kind}~{address}~{name}~{}.svc.cluster.local", pod.namespace),
            "cluster": name,
        },
        "admin": {"address": socket_address(Ipv4Addr::LOCALHOST, PORTS.admin)},
        "stats_config": stats(),
        "overload_manager": {"resource_monitors": [connections_without_limit()]},
        "static_resources": {
            "listeners": listeners,
            "clusters": clusters,
            "secrets": [
                {"name": CERTIFICATE, "tls_certificate": {
                    "certificate_chain": {"inline_string": credentials.certificate_pem},
                    "private_key": {"inline_string": credentials.key_pem},
                }},
                {"name": ROOT, "validation_context": {
                    "trusted_ca": {"inline_string": root_pem},
                }},
            ],
        },
    })
}

/// As Istio says it; without, Envoy warns that there is no limit.
fn connections_without_limit() -> Value {
    extension(
        "envoy.resource_monitors.global_downstream_max_connections",
        "envoy.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig",
        json!({"max_active_downstream_connections": i32::MAX}),
    )
}

/// Istio keeps few of Envoy's own counters, since its filter counts for it.
fn stats() -> Value {
    let prefixes = ["cluster_manager", "listener_manager", "server", "component", "istio"];
    let suffixes =
        ["rbac.allowed", "rbac.denied", "shadow_allowed", "shadow_denied", "downstream_cx_active"];
    let prefixes = prefixes.iter().map(|text| json!({"prefix": text}));
    let suffixes = suffixes.iter().map(|text| json!({"suffix": text}));
    let patterns: Vec<Value> = prefixes.chain(suffixes).collect();
    json!({
        "use_all_default_tags": false,
        "stats_matcher": {"inclusion_list": {"patterns": patterns}},
    })
}
