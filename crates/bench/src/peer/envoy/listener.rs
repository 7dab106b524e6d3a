//! The two listeners that have sockets, and the ones behind them.
//!
//! A pod's outbound connections arrive at `virtualOutbound`, which hands each to the listener of
//! its original destination: one for each port number for HTTP, where the host decides, one for
//! each service and port for everything else. Inbound connections arrive at `virtualInbound`, which
//! has one filter chain for each port. Connections without TLS match none and are closed.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::{Value, json};

use super::super::topology::{Pod, Port, Protocol, Service, Topology};
use super::{PORTS, cluster, extension, http, socket_address};

/// What Istio's clients say in the handshake when they send HTTP.
const INBOUND_HTTP_ALPN: [&str; 3] = ["istio-http/1.0", "istio-http/1.1", "istio-h2"];
/// The ALPN names that the HTTP inspector reports for HTTP/1.
const PLAIN_HTTP_ALPN: [&str; 2] = ["http/1.0", "http/1.1"];

/// Every listener of a sidecar.
pub(super) fn all(topology: &Topology, pod: &Pod) -> Vec<Value> {
    let mut listeners = vec![virtual_outbound(), virtual_inbound(topology, pod)];
    let ports = topology.services.iter().flat_map(|service| &service.ports);
    let http: BTreeSet<u16> = ports
        .filter(|port| matches!(port.protocol, Protocol::Http1 | Protocol::Http2))
        .map(|port| port.number)
        .collect();
    listeners.extend(http.into_iter().map(|port| outbound_http(topology, pod, port)));
    let mut taken = BTreeSet::new();
    for service in &topology.services {
        for port in &service.ports {
            for address in &service.addresses {
                if taken.insert((*address, port.number)) {
                    listeners.extend(outbound_tcp(topology, pod, service, port, *address));
                }
            }
        }
    }
    listeners
}

/// Both families, each with a socket of its own where there are sockets.
fn on_every_address(name: &str, port: u16) -> Value {
    json!({
        "name": name,
        "address": socket_address("0.0.0.0", port),
        "additional_addresses": [{"address": socket_address("::", port)}],
    })
}

fn virtual_outbound() -> Value {
    let mut listener = on_every_address("virtualOutbound", PORTS.outbound);
    listener["traffic_direction"] = json!("OUTBOUND");
    listener["use_original_dst"] = json!(true);
    listener["max_connections_to_accept_per_socket_event"] = json!(1);
    listener["filter_chains"] = json!([
        black_hole("virtualOutbound-blackhole", PORTS.outbound),
        {"name": "virtualOutbound-catchall-tcp", "filters": [http::tcp(cluster::PASSTHROUGH)]},
    ]);
    listener
}

/// A connection to the proxy's own port would go round in circles.
fn black_hole(name: &str, port: u16) -> Value {
    json!({
        "name": name,
        "filter_chain_match": {"destination_port": port},
        "filters": [http::tcp("BlackHoleCluster")],
    })
}

fn outbound_http(topology: &Topology, pod: &Pod, port: u16) -> Value {
    let mut listener = on_every_address(&format!("0.0.0.0_{port}"), port);
    listener["traffic_direction"] = json!("OUTBOUND");
    listener["bind_to_port"] = json!(false);
    listener["filter_chains"] = json!([{"filters": [http::outbound(topology, pod, port)]}]);
    listener
}

/// For ports that do not carry HTTP, or that declare no protocol.
fn outbound_tcp(
    topology: &Topology,
    pod: &Pod,
    service: &Service,
    port: &Port,
    address: IpAddr,
) -> Option<Value> {
    let tcp = || http::tcp(&cluster::outbound_name(service, port, Protocol::Tcp));
    let mut listener = json!({
        "name": format!("{address}_{}", port.number),
        "address": socket_address(address, port.number),
        "traffic_direction": "OUTBOUND",
        "bind_to_port": false,
        "filter_chains": [{"filters": [tcp()]}],
    });
    match port.protocol {
        Protocol::Http1 | Protocol::Http2 => return None,
        Protocol::Tcp => {}
        Protocol::Detect => {
            listener["listener_filters"] = json!([tls_inspector(), http_inspector()]);
            // Istio waits for the first bytes as long as it takes.
            listener["listener_filters_timeout"] = json!("0s");
            listener["continue_on_listener_filters_timeout"] = json!(true);
            listener["filter_chains"] = json!([{
                "filter_chain_match": {
                    "application_protocols": PLAIN_HTTP_ALPN,
                    "transport_protocol": "raw_buffer",
                },
                "filters": [http::outbound(topology, pod, port.number)],
            }]);
            listener["default_filter_chain"] = json!({"filters": [tcp()]});
        }
    }
    Some(listener)
}

fn virtual_inbound(topology: &Topology, pod: &Pod) -> Value {
    let mut chains = vec![black_hole("virtualInbound-blackhole", PORTS.inbound)];
    for (port, protocol) in topology.inbound_ports(pod) {
        let carries_http = || inbound_http(topology, pod, port);
        match protocol {
            Protocol::Http1 | Protocol::Http2 => chains.push(carries_http()),
            Protocol::Tcp => chains.push(inbound_tcp(topology, pod, Some(port))),
            Protocol::Detect => {
                let mut http = carries_http();
                http["filter_chain_match"]["application_protocols"] = json!(INBOUND_HTTP_ALPN);
                http["name"] = json!(format!("0.0.0.0_{port}-http"));
                chains.extend([http, inbound_tcp(topology, pod, Some(port))]);
            }
        }
    }
    chains.push(inbound_tcp(topology, pod, None));
    let mut listener = on_every_address("virtualInbound", PORTS.inbound);
    listener["traffic_direction"] = json!("INBOUND");
    listener["max_connections_to_accept_per_socket_event"] = json!(1);
    listener["listener_filters"] = json!([
        extension(
            "envoy.filters.listener.original_dst",
            "envoy.extensions.filters.listener.original_dst.v3.OriginalDst",
            json!({}),
        ),
        tls_inspector(),
    ]);
    listener["listener_filters_timeout"] = json!("0s");
    listener["continue_on_listener_filters_timeout"] = json!(true);
    listener["filter_chains"] = json!(chains);
    listener
}

fn inbound_http(topology: &Topology, pod: &Pod, port: u16) -> Value {
    json!({
        "name": format!("0.0.0.0_{port}"),
        "filter_chain_match": {"destination_port": port, "transport_protocol": "tls"},
        "transport_socket": cluster::downstream_tls(Protocol::Http1),
        "filters": [http::inbound(topology, pod, port)],
    })
}

/// A port that does not carry HTTP; without one, every port that no service has.
fn inbound_tcp(topology: &Topology, pod: &Pod, port: Option<u16>) -> Value {
    let (name, cluster) = match port {
        Some(port) => (format!("0.0.0.0_{port}"), cluster::inbound_name(port)),
        None => ("virtualInbound".to_owned(), cluster::INBOUND_PASSTHROUGH.to_owned()),
    };
    let mut chain = json!({
        "name": name,
        "filter_chain_match": {"transport_protocol": "tls"},
        "transport_socket": cluster::downstream_tls(Protocol::Tcp),
        "filters": [http::tcp_policy(topology, pod), http::tcp(&cluster)],
    });
    if let Some(port) = port {
        chain["filter_chain_match"]["destination_port"] = json!(port);
    }
    chain
}

fn tls_inspector() -> Value {
    extension(
        "envoy.filters.listener.tls_inspector",
        "envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector",
        json!({}),
    )
}

fn http_inspector() -> Value {
    extension(
        "envoy.filters.listener.http_inspector",
        "envoy.extensions.filters.listener.http_inspector.v3.HttpInspector",
        json!({}),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::topology::tests::example;

    /// Each listener of a pod with its filter chains, by names and matches.
    fn check(pod: usize, expected: &[(&str, &[&str])]) {
        let topology = example();
        let listeners = all(&topology, &topology.pods[pod]);
        let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
        let chain = |chain: &Value| {
            let kind = chain["filter_chain_match"]["transport_protocol"].as_str().unwrap_or("any");
            let last = chain["filters"].as_array().and_then(|filters| filters.last());
            let last = last.map(|filter| text(&filter["name"])).unwrap_or_default();
            let last = last.rsplit('.').next().unwrap_or_default().to_owned();
            format!("{} {kind} {last}", text(&chain["name"]))
        };
        let found: Vec<(String, Vec<String>)> = listeners
            .iter()
            .map(|listener| {
                let chains = listener["filter_chains"].as_array().into_iter().flatten();
                let default = listener.get("default_filter_chain");
                (text(&listener["name"]), chains.chain(default).map(chain).collect())
            })
            .collect();
        let owned = |text: &&str| (*text).to_owned();
        let expected: Vec<(String, Vec<String>)> = expected
            .iter()
            .map(|(name, chains)| (owned(name), chains.iter().map(owned).collect()))
            .collect();
        assert_eq!(found, expected);
    }

    const OUTBOUND: (&str, &[&str]) = (
        "virtualOutbound",
        &["virtualOutbound-blackhole any tcp_proxy", "virtualOutbound-catchall-tcp any tcp_proxy"],
    );
    const SERVICES: [(&str, &[&str]); 4] = [
        ("0.0.0.0_80", &["- any http_connection_manager"]),
        ("0.0.0.0_81", &["- any http_connection_manager"]),
        ("10.96.1.0_82", &["- any tcp_proxy"]),
        ("10.96.1.0_83", &["- raw_buffer http_connection_manager", "- any tcp_proxy"]),
    ];

    #[test]
    fn a_client_has_listeners_for_what_it_calls() {
        let inbound: &[&str] =
            &["virtualInbound-blackhole any tcp_proxy", "virtualInbound tls tcp_proxy"];
        let own = [OUTBOUND, ("virtualInbound", inbound)];
        check(0, &[own.as_slice(), &SERVICES].concat());
    }

    #[test]
    fn a_server_takes_nothing_without_tls() {
        let inbound: &[&str] = &[
            "virtualInbound-blackhole any tcp_proxy",
            "0.0.0.0_8080 tls http_connection_manager",
            "0.0.0.0_8081 tls http_connection_manager",
            "0.0.0.0_8082 tls tcp_proxy",
            "0.0.0.0_8083-http tls http_connection_manager",
            "0.0.0.0_8083 tls tcp_proxy",
            "virtualInbound tls tcp_proxy",
        ];
        let own = [OUTBOUND, ("virtualInbound", inbound)];
        check(1, &[own.as_slice(), &SERVICES].concat());
    }
}
