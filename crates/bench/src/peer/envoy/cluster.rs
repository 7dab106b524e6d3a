//! Where a sidecar connects to, and how it proves itself there.

use serde_json::{Value, json};

use ambit_words::ports;

use super::super::topology::{Endpoint, Pod, Port, Protocol, Service, Topology};
use super::bootstrap::{CERTIFICATE, ROOT};
use super::{extension, socket_address, typed};

const TLS: &str = "envoy.transport_sockets.tls";
const UPSTREAM_TLS: &str = "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext";
const DOWNSTREAM_TLS: &str = "envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext";
const HTTP_OPTIONS: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
pub(super) const CONNECT_TIMEOUT: &str = "10s";

/// ALPN names, which say in the handshake what the connection carries.
const ALPN_HTTP1: [&str; 3] = ["istio-http/1.1", "istio", "http/1.1"];
const ALPN_HTTP2: [&str; 3] = ["istio-h2", "istio", "h2"];
const ALPN_TCP: [&str; 2] = ["istio-peer-exchange", "istio"];

/// The cluster that connects to the original destination.
pub(super) const PASSTHROUGH: &str = "PassthroughCluster";
pub(super) const INBOUND_PASSTHROUGH: &str = "InboundPassthroughCluster";

/// The name of a service's port; connections that are detected as HTTP have their own cluster.
pub(super) fn outbound_name(service: &Service, port: &Port, carries: Protocol) -> String {
    let subset = if port.protocol == Protocol::Detect && carries == Protocol::Http1 {
        "detected-http"
    } else {
        ""
    };
    format!("outbound|{}|{subset}|{}", port.number, service.hostname())
}

/// The name of a port of the pod itself.
pub(super) fn inbound_name(port: u16) -> String {
    format!("inbound|{port}||")
}

/// Every cluster of a sidecar.
pub(super) fn all(topology: &Topology, pod: &Pod) -> Vec<Value> {
    let mut clusters =
        vec![original_destination(PASSTHROUGH), { original_destination(INBOUND_PASSTHROUGH) }];
    for (port, protocol) in topology.inbound_ports(pod) {
        let mut cluster = original_destination(&inbound_name(port));
        if protocol == Protocol::Http2 {
            cluster["typed_extension_protocol_options"] = http2_options();
        }
        clusters.push(cluster);
    }
    for service in &topology.services {
        for port in &service.ports {
            match port.protocol {
                Protocol::Detect => {
                    clusters.push(outbound(service, port, Protocol::Http1));
                    clusters.push(outbound(service, port, Protocol::Tcp));
                }
                carries => clusters.push(outbound(service, port, carries)),
            }
        }
    }
    clusters
}

/// Connects in the clear to the address that the connection was made to before it was redirected.
fn original_destination(name: &str) -> Value {
    json!({
        "name": name,
        "type": "ORIGINAL_DST",
        "lb_policy": "CLUSTER_PROVIDED",
        "connect_timeout": CONNECT_TIMEOUT,
        "circuit_breakers": no_limits(),
    })
}

fn outbound(service: &Service, port: &Port, carries: Protocol) -> Value {
    let name = outbound_name(service, port, carries);
    let endpoints: Vec<Value> = port
        .endpoints
        .iter()
        .map(|it| json!({"endpoint": {"address": socket_address(it.address, it.port)}}))
        .collect();
    let mut cluster = json!({
        "name": name,
        "type": "STATIC",
        "lb_policy": "LEAST_REQUEST",
        "connect_timeout": CONNECT_TIMEOUT,
        "circuit_breakers": no_limits(),
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": endpoints}]},
        "transport_socket": upstream_tls(service, port, carries),
    });
    if carries == Protocol::Http2 {
        cluster["typed_extension_protocol_options"] = http2_options();
    }
    cluster
}

/// The name of the tunnels to a pod.
pub(super) fn hbone_name(endpoint: &Endpoint) -> String {
    format!("hbone|{}", endpoint.address)
}

/// Tunnels to a pod, to which a waypoint proves its own identity and of which it requires the
/// pod's.
pub(super) fn hbone(endpoint: &Endpoint) -> Value {
    let name = hbone_name(endpoint);
    let there = json!({"address": socket_address(endpoint.address, ports::HBONE)});
    let identity = endpoint.identity.to_string();
    let names = [json!({"san_type": "URI", "matcher": {"exact": identity}})];
    let context = json!({"common_tls_context": common_tls(&["h2"], &names)});
    json!({
        "name": name,
        "type": "STATIC",
        "connect_timeout": CONNECT_TIMEOUT,
        "circuit_breakers": no_limits(),
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": [{"endpoint": there}]}],
        },
        "typed_extension_protocol_options": http2_options(),
        "transport_socket": extension(TLS, UPSTREAM_TLS, context),
    })
}

/// Istio lifts Envoy's limits on connections and requests.
pub(super) fn no_limits() -> Value {
    let max = u32::MAX;
    json!({"thresholds": [{
        "max_connections": max,
        "max_pending_requests": max,
        "max_requests": max,
        "max_retries": max,
        "track_remaining": true,
    }]})
}

fn http2_options() -> Value {
    let options = json!({"explicit_http_config": {"http2_protocol_options": {}}});
    json!({HTTP_OPTIONS: typed(HTTP_OPTIONS, options)})
}

/// Proves this pod's identity and requires one of the identities behind the service.
fn upstream_tls(service: &Service, port: &Port, carries: Protocol) -> Value {
    let mut identities: Vec<String> =
        port.endpoints.iter().map(|endpoint| endpoint.identity.to_string()).collect();
    identities.sort();
    identities.dedup();
    let names: Vec<Value> = identities
        .iter()
        .map(|identity| json!({"san_type": "URI", "matcher": {"exact": identity}}))
        .collect();
    let alpn: &[&str] = match carries {
        Protocol::Http1 => &ALPN_HTTP1,
        Protocol::Http2 => &ALPN_HTTP2,
        Protocol::Tcp | Protocol::Detect => &ALPN_TCP,
    };
    let context = json!({
        "sni": format!("outbound_.{}_._.{}", port.number, service.hostname()),
        "common_tls_context": common_tls(alpn, &names),
    });
    extension(TLS, UPSTREAM_TLS, context)
}

/// Takes connections of workloads that prove an identity of the trust domain, and no others.
pub(super) fn downstream_tls(carries: Protocol) -> Value {
    let alpn: &[&str] = match carries {
        Protocol::Http1 | Protocol::Http2 => &["h2", "http/1.1"],
        Protocol::Tcp | Protocol::Detect => &["istio-peer-exchange", "h2", "http/1.1"],
    };
    of_trust_domain(alpn)
}

/// The same for tunnels.
pub(super) fn downstream_hbone() -> Value {
    of_trust_domain(&["h2"])
}

fn of_trust_domain(alpn: &[&str]) -> Value {
    let trust_domain = json!({"san_type": "URI", "matcher": {"prefix": "spiffe://cluster.local/"}});
    let context = json!({
        "require_client_certificate": true,
        "common_tls_context": common_tls(alpn, &[trust_domain]),
    });
    extension(TLS, DOWNSTREAM_TLS, context)
}

fn common_tls(alpn: &[&str], names: &[Value]) -> Value {
    json!({
        "tls_params": {
            "tls_minimum_protocol_version": "TLSv1_2",
            "tls_maximum_protocol_version": "TLSv1_3",
        },
        "alpn_protocols": alpn,
        "tls_certificate_sds_secret_configs": [{"name": CERTIFICATE}],
        "combined_validation_context": {
            "default_validation_context": {"match_typed_subject_alt_names": names},
            "validation_context_sds_secret_config": {"name": ROOT},
        },
    })
}
