//! Envoy as a waypoint: HBONE in, HTTP, HBONE out, as Istio configures one.
//!
//! Istio builds it of three layers of listeners, which this follows: `connect_terminate` ends the
//! tunnel and its TLS, an inner listener for each port of a service is the HTTP proxy, and
//! `originate` opens a tunnel to an endpoint. Istio finds the layers' ways by metadata and
//! original destinations, for which its build has filters; here each way has a listener and a
//! cluster of its own, which costs a request nothing.
//!
//! Where it differs, it has less to do: a client's identity is judged once for each tunnel, not
//! for each request; there are no filters for statistics and metadata of peers. Methods are judged
//! for each request, and each request is in the access log, as at Ambit's waypoint.

use std::net::{IpAddr, SocketAddr};

use ambit_words::ports;
use serde_json::{Value, json};

use super::super::authority::Credentials;
use super::super::topology::{Endpoint, Pod, Port, Protocol, Service, Topology};
use super::{bootstrap, cluster, extension, http, socket_address};

const INTERNAL_UPSTREAM: &str =
    "envoy.extensions.transport_sockets.internal_upstream.v3.InternalUpstreamTransport";
const RAW_BUFFER: &str = "envoy.extensions.transport_sockets.raw_buffer.v3.RawBuffer";

/// The configuration of a waypoint for the services of its own namespace.
pub(super) fn write(
    topology: &Topology,
    pod: &Pod,
    credentials: &Credentials,
    root_pem: &str,
) -> Value {
    let (mut listeners, mut clusters, mut tunnels) = (Vec::new(), Vec::new(), Vec::new());
    let mut endpoints: Vec<&Endpoint> = Vec::new();
    for service in topology.services.iter().filter(|it| it.namespace == pod.namespace) {
        for port in service.ports.iter().filter(|port| !port.endpoints.is_empty()) {
            let inner = format!("inner|{}|{}", port.number, service.hostname());
            listeners.push(inner_listener(&inner, service, port));
            clusters.push(to_listeners(&inner, [inner.clone()]));
            let out = cluster::outbound_name(service, port, carried(port));
            let there = port.endpoints.iter().map(|it| originate_name(it.address, it.port));
            clusters.push(to_listeners(&out, there));
            tunnels.extend(
                service
                    .addresses
                    .iter()
                    .map(|address| tunnel_to(SocketAddr::new(*address, port.number), &inner)),
            );
            for endpoint in &port.endpoints {
                let is_same =
                    |it: &&Endpoint| (it.address, it.port) == (endpoint.address, endpoint.port);
                if !endpoints.iter().any(is_same) {
                    endpoints.push(endpoint);
                }
            }
        }
    }
    for endpoint in endpoints {
        listeners.push(originate(endpoint));
        let cluster = cluster::hbone(endpoint);
        if !clusters.contains(&cluster) {
            clusters.push(cluster);
        }
    }
    listeners.push(connect_terminate(pod, &tunnels));
    let mut all = bootstrap::around(pod, "waypoint", credentials, root_pem, &listeners, &clusters);
    all["bootstrap_extensions"] = json!([extension(
        "envoy.bootstrap.internal_listener",
        "envoy.extensions.bootstrap.internal_listener.v3.InternalListener",
        json!({}),
    )]);
    // Readiness is asked for by HTTP from outside of the pod.
    all["static_resources"]["listeners"]
        .as_array_mut()
        .into_iter()
        .for_each(|listeners| listeners.push(readiness()));
    all
}

fn carried(port: &Port) -> Protocol {
    match port.protocol {
        Protocol::Detect => Protocol::Http1,
        carries => carries,
    }
}

fn originate_name(address: IpAddr, port: u16) -> String {
    format!("originate|{}", SocketAddr::new(address, port))
}

/// Ends the tunnels of whoever proves an identity of the trust domain.
fn connect_terminate(pod: &Pod, tunnels: &[Value]) -> Value {
    let manager = http::terminating(pod, tunnels);
    json!({
        "name": "connect_terminate",
        "address": socket_address("0.0.0.0", ports::HBONE),
        "additional_addresses": [{"address": socket_address("::", ports::HBONE)}],
        "filter_chains": [{
            "transport_socket": cluster::downstream_hbone(),
            "filters": [manager],
        }],
    })
}

/// A CONNECT for this address goes to this inner listener.
fn tunnel_to(address: SocketAddr, inner: &str) -> Value {
    json!({
        "match": {
            "connect_matcher": {},
            "headers": [{"name": ":authority", "string_match": {"exact": address.to_string()}}],
        },
        "route": {
            "cluster": inner,
            "timeout": "0s",
            "upgrade_configs": [{"upgrade_type": "CONNECT", "connect_config": {}}],
        },
    })
}

fn inner_listener(name: &str, service: &Service, port: &Port) -> Value {
    let out = cluster::outbound_name(service, port, carried(port));
    let filter = match port.protocol {
        Protocol::Tcp => http::tcp(&out),
        _ => http::waypoint(name, &out),
    };
    json!({"name": name, "internal_listener": {}, "filter_chains": [{"filters": [filter]}]})
}

/// Opens a tunnel to an endpoint, and passes on what comes.
fn originate(endpoint: &Endpoint) -> Value {
    let there = SocketAddr::new(endpoint.address, endpoint.port);
    json!({
        "name": originate_name(endpoint.address, endpoint.port),
        "internal_listener": {},
        "filter_chains": [{
            "filters": [http::tunnelling(&cluster::hbone_name(endpoint), &there.to_string())],
        }],
    })
}

/// A cluster whose endpoints are listeners of the same process.
fn to_listeners(name: &str, listeners: impl IntoIterator<Item = String>) -> Value {
    let endpoints: Vec<Value> = listeners
        .into_iter()
        .map(|listener| {
            let address = json!({"server_listener_name": listener, "endpoint_id": listener});
            json!({"endpoint": {"address": {"envoy_internal_address": address}}})
        })
        .collect();
    let raw = extension("envoy.transport_sockets.raw_buffer", RAW_BUFFER, json!({}));
    json!({
        "name": name,
        "type": "STATIC",
        "lb_policy": "LEAST_REQUEST",
        "connect_timeout": cluster::CONNECT_TIMEOUT,
        "circuit_breakers": cluster::no_limits(),
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": endpoints}]},
        "transport_socket": extension(
            "envoy.transport_sockets.internal_upstream",
            INTERNAL_UPSTREAM,
            json!({"transport_socket": raw}),
        ),
    })
}

fn readiness() -> Value {
    json!({
        "name": "readiness",
        "address": socket_address("0.0.0.0", ports::PROXY_READINESS),
        "additional_addresses": [{"address": socket_address("::", ports::PROXY_READINESS)}],
        "filter_chains": [{"filters": [http::readiness()]}],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::authority::Authority;
    use crate::peer::topology::tests::example;

    /// The names of listeners or clusters.
    fn names(all: &Value) -> Vec<&str> {
        let all = all.as_array().unwrap().iter();
        all.map(|item| item["name"].as_str().unwrap()).collect()
    }

    #[test]
    fn every_way_has_its_listener_and_its_cluster() {
        let mut topology = example();
        let namespace = topology.services[0].namespace.clone();
        topology.pods[0].namespace.clone_from(&namespace);
        let pod = &topology.pods[0];
        let authority = Authority::generate().unwrap();
        let credentials = authority.workload(&pod.identity).unwrap();
        let all = write(&topology, pod, &credentials, &authority.root_pem());
        let resources = &all["static_resources"];
        let listeners = names(&resources["listeners"]);
        let clusters = names(&resources["clusters"]);
        let count = |names: &[&str], prefix: &str| {
            names.iter().filter(|name| name.starts_with(prefix)).count()
        };
        // The client's end of a tunnel finds the inner listener, HTTP or not.
        assert!(count(&listeners, "inner|") > 0);
        assert_eq!(count(&listeners, "inner|"), count(&clusters, "inner|"));
        // Each endpoint that a cluster names is a listener.
        for cluster in resources["clusters"].as_array().unwrap() {
            let endpoints = &cluster["load_assignment"]["endpoints"][0]["lb_endpoints"];
            for endpoint in endpoints.as_array().unwrap() {
                let address = &endpoint["endpoint"]["address"];
                if let Some(name) =
                    address["envoy_internal_address"]["server_listener_name"].as_str()
                {
                    assert!(listeners.contains(&name), "{name}");
                }
            }
        }
        assert!(count(&clusters, "hbone|") > 0);
        assert_eq!(count(&listeners, "connect_terminate"), 1);
        assert_eq!(count(&listeners, "readiness"), 1);
    }
}
