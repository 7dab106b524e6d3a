//! HTTP connection managers, their routes and filters.

use ambit_words::names::DEFAULT_CLUSTER_DOMAIN;
use serde_json::{Value, json};

use super::super::topology::{Pod, Protocol, Service, Topology};
use super::{cluster, extension};

const MANAGER: &str =
    "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
const CONNECTION_MANAGER: &str = "envoy.filters.network.http_connection_manager";
const RBAC: &str = "envoy.extensions.filters.http.rbac.v3.RBAC";
const TCP_PROXY: &str = "envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy";

/// What a pod's requests to a port number go through: each service by its host names.
pub(super) fn outbound(topology: &Topology, pod: &Pod, port: u16) -> Value {
    let mut hosts: Vec<Value> = Vec::new();
    for service in &topology.services {
        for it in service.ports.iter().filter(|it| it.number == port) {
            let carries = match it.protocol {
                Protocol::Tcp => continue,
                Protocol::Detect => Protocol::Http1,
                carries => carries,
            };
            hosts.push(json!({
                "name": format!("{}:{port}", service.hostname()),
                "domains": domains(service, pod),
                "routes": [route(&cluster::outbound_name(service, it, carries))],
                "include_request_attempt_count": true,
            }));
        }
    }
    hosts.push(json!({
        "name": "allow_any",
        "domains": ["*"],
        "routes": [{"match": {"prefix": "/"}, "name": "allow_any", "route": {
            "cluster": cluster::PASSTHROUGH, "timeout": "0s",
        }}],
    }));
    let filters = [grpc_stats(), fault(), cors(), router()];
    let mut manager = manager(&format!("outbound_0.0.0.0_{port}"), &filters);
    manager["route_config"] = json!({
        "name": port.to_string(),
        "virtual_hosts": hosts,
        "validate_clusters": false,
        "ignore_port_in_host_matching": true,
    });
    extension(CONNECTION_MANAGER, MANAGER, manager)
}

/// What requests to a port of the pod go through.
pub(super) fn inbound(topology: &Topology, pod: &Pod, port: u16) -> Value {
    let name = cluster::inbound_name(port);
    let filters = [http_policy(topology, pod), grpc_stats(), fault(), cors(), router()];
    let mut manager = manager(&format!("inbound_0.0.0.0_{port}"), &filters);
    manager["server_name"] = json!("istio-envoy");
    manager["forward_client_cert_details"] = json!("APPEND_FORWARD");
    manager["set_current_client_cert_details"] = json!({"subject": true, "dns": true, "uri": true});
    manager["route_config"] = json!({
        "name": name,
        "validate_clusters": false,
        "virtual_hosts": [{"name": format!("inbound|http|{port}"), "domains": ["*"], "routes": [{
            "match": {"prefix": "/"},
            "name": "default",
            "decorator": {"operation": format!(":{port}/*")},
            "route": {"cluster": name, "timeout": "0s", "max_stream_duration": {
                "max_stream_duration": "0s", "grpc_timeout_header_max": "0s",
            }},
        }]}],
    });
    extension(CONNECTION_MANAGER, MANAGER, manager)
}

/// What requests to a port of a service go through at a waypoint: only GET is allowed.
pub(super) fn waypoint(name: &str, out: &str) -> Value {
    let method = json!({"header": {"name": ":method", "string_match": {"exact": "GET"}}});
    let rules = json!({"action": "ALLOW", "policies": {"ns[bench]-policy[waypoint]-rule[0]": {
        "permissions": [{"and_rules": {"rules": [{"or_rules": {"rules": [method]}}]}}],
        "principals": [{"any": true}],
    }}});
    let rbac = extension("envoy.filters.http.rbac", RBAC, json!({"rules": rules}));
    let mut manager = manager(name, &[rbac, grpc_stats(), fault(), cors(), router()]);
    manager["server_name"] = json!("istio-envoy");
    manager["access_log"] = json!([extension(
        "envoy.access_loggers.stdout",
        "envoy.extensions.access_loggers.stream.v3.StdoutAccessLog",
        json!({}),
    )]);
    manager["route_config"] = json!({
        "name": name,
        "validate_clusters": false,
        "virtual_hosts": [{"name": name, "domains": ["*"], "routes": [route(out)]}],
    });
    extension(CONNECTION_MANAGER, MANAGER, manager)
}

/// What ends tunnels: for clients of the pod's namespace, along these routes.
pub(super) fn terminating(pod: &Pod, routes: &[Value]) -> Value {
    let prefix = format!("spiffe://cluster.local/ns/{}/", pod.namespace);
    let rules = json!({"action": "ALLOW", "policies": {"namespace": {
        "permissions": [{"any": true}],
        "principals": [{"authenticated": {"principal_name": {"prefix": prefix}}}],
    }}});
    let rbac = extension("envoy.filters.http.rbac", RBAC, json!({"rules": rules}));
    let manager = json!({
        "stat_prefix": "connect_terminate",
        "codec_type": "HTTP2",
        "http2_protocol_options": {"allow_connect": true},
        "stream_idle_timeout": "0s",
        "upgrade_configs": [{"upgrade_type": "CONNECT"}],
        "http_filters": [rbac, router()],
        "route_config": {
            "name": "connect_terminate",
            "validate_clusters": false,
            "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": routes}],
        },
    });
    extension(CONNECTION_MANAGER, MANAGER, manager)
}

/// Passes bytes on in a tunnel to this address.
pub(super) fn tunnelling(cluster: &str, address: &str) -> Value {
    let proxy = json!({
        "stat_prefix": cluster,
        "cluster": cluster,
        "tunneling_config": {"hostname": address},
    });
    extension("envoy.filters.network.tcp_proxy", TCP_PROXY, proxy)
}

/// Answers that it is there.
pub(super) fn readiness() -> Value {
    let manager = json!({
        "stat_prefix": "readiness",
        "http_filters": [router()],
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [{
            "match": {"path": "/healthz/ready"},
            "direct_response": {"status": 200},
        }]}]},
    });
    extension(CONNECTION_MANAGER, MANAGER, manager)
}

/// Passes bytes on to a cluster.
pub(super) fn tcp(cluster: &str) -> Value {
    let proxy = json!({"stat_prefix": cluster, "cluster": cluster});
    extension("envoy.filters.network.tcp_proxy", TCP_PROXY, proxy)
}

/// What every connection manager of Istio's has.
fn manager(stat_prefix: &str, filters: &[Value]) -> Value {
    json!({
        "stat_prefix": stat_prefix,
        "codec_type": "AUTO",
        "use_remote_address": false,
        "normalize_path": true,
        "path_with_escaped_slashes_action": "KEEP_UNCHANGED",
        "proxy_100_continue": true,
        "stream_idle_timeout": "0s",
        "upgrade_configs": [{"upgrade_type": "websocket"}],
        "request_id_extension": {"typed_config": super::typed(
            "envoy.extensions.request_id.uuid.v3.UuidRequestIdConfig",
            json!({"use_request_id_for_trace_sampling": true}),
        )},
        "http_filters": filters,
    })
}

/// The names by which a pod may call a service.
fn domains(service: &Service, pod: &Pod) -> Vec<String> {
    let Service { namespace, name, .. } = service;
    let mut domains = vec![
        format!("{name}.{namespace}.svc.{DEFAULT_CLUSTER_DOMAIN}"),
        format!("{name}.{namespace}.svc"),
        format!("{name}.{namespace}"),
    ];
    if *namespace == pod.namespace {
        domains.push(name.clone());
    }
    domains.extend(service.addresses.iter().map(|ip| match ip {
        std::net::IpAddr::V4(ip) => ip.to_string(),
        std::net::IpAddr::V6(ip) => format!("[{ip}]"),
    }));
    domains
}

fn route(cluster: &str) -> Value {
    json!({
        "name": "default",
        "match": {"prefix": "/"},
        "decorator": {"operation": cluster},
        "route": {
            "cluster": cluster,
            "timeout": "0s",
            "max_grpc_timeout": "0s",
            "retry_policy": {
                "retry_on": "connect-failure,refused-stream,unavailable,cancelled,\
                             retriable-status-codes",
                "num_retries": 2,
                "retry_host_predicate": [extension(
                    "envoy.retry_host_predicates.previous_hosts",
                    "envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate",
                    json!({}),
                )],
                "host_selection_retry_max_attempts": "5",
            },
        },
    })
}

/// The policy as a filter of HTTP requests.
fn http_policy(topology: &Topology, pod: &Pod) -> Value {
    let rbac = json!({
        "rules": rules(topology, pod),
        "shadow_rules_stat_prefix": "istio_dry_run_allow_",
    });
    extension("envoy.filters.http.rbac", RBAC, rbac)
}

/// The policy as a filter of connections.
pub(super) fn tcp_policy(topology: &Topology, pod: &Pod) -> Value {
    let kind = "envoy.extensions.filters.network.rbac.v3.RBAC";
    let rbac = json!({
        "rules": rules(topology, pod),
        "stat_prefix": "tcp.",
        "shadow_rules_stat_prefix": "istio_dry_run_allow_",
    });
    extension("envoy.filters.network.rbac", kind, rbac)
}

/// An AuthorizationPolicy that names each identity as a principal.
fn rules(topology: &Topology, pod: &Pod) -> Value {
    let principals: Vec<Value> = topology
        .identities_from(&pod.namespace)
        .into_iter()
        .map(|it| json!({"authenticated": {"principal_name": {"exact": it.to_string()}}}))
        .collect();
    let name = format!("ns[{}]-policy[bench]-rule[0]", pod.namespace);
    json!({"action": "ALLOW", "policies": {name: {
        "permissions": [{"and_rules": {"rules": [{"any": true}]}}],
        "principals": [{"and_ids": {"ids": [{"or_ids": {"ids": principals}}]}}],
    }}})
}

fn grpc_stats() -> Value {
    let kind = "envoy.extensions.filters.http.grpc_stats.v3.FilterConfig";
    let filter = json!({"emit_filter_state": true, "stats_for_all_methods": false});
    extension("envoy.filters.http.grpc_stats", kind, filter)
}

fn fault() -> Value {
    let kind = "envoy.extensions.filters.http.fault.v3.HTTPFault";
    extension("envoy.filters.http.fault", kind, json!({}))
}

fn cors() -> Value {
    extension("envoy.filters.http.cors", "envoy.extensions.filters.http.cors.v3.Cors", json!({}))
}

fn router() -> Value {
    let kind = "envoy.extensions.filters.http.router.v3.Router";
    extension("envoy.filters.http.router", kind, json!({}))
}
