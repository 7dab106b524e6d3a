//! The control plane's messages: policies, profiles and endpoints as Linkerd's controllers write
//! them by default.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use ambit_model::identity::Identity;
use ipnet::IpNet;
use linkerd2_proxy_api::destination::{
    self, DestinationProfile, Http2ClientParams, ProtocolHint, RetryBudget, TlsIdentity, Update,
    WeightedAddr, WeightedAddrSet, http2_client_params, protocol_hint, tls_identity, update,
};
use linkerd2_proxy_api::http_route::{HttpRouteMatch, PathMatch, path_match};
use linkerd2_proxy_api::inbound::{self, Authn, Authz, Network, Server, authn};
use linkerd2_proxy_api::meta::{Metadata, Resource, metadata};
use linkerd2_proxy_api::outbound::{
    self, Backend, OpaqueRoute, OutboundPolicy, backend, http_route, opaque_route, proxy_protocol,
};

use super::super::topology::{Port, Service};
use super::{PORTS, identity_name};

/// How long the first bytes of a connection are waited for.
const DETECT_TIMEOUT: Duration = Duration::from_secs(10);
const QUEUE_CAPACITY: u32 = 100;
const QUEUE_FAILFAST_TIMEOUT: Duration = Duration::from_secs(3);
const BALANCER_DEFAULT_RTT: Duration = Duration::from_millis(30);
const BALANCER_RTT_DECAY: Duration = Duration::from_secs(10);
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(3);
const WEIGHT: u32 = 10_000;

/// To a port of a service: balanced over its endpoints.
pub(super) fn to_service(service: &Service, port: &Port) -> OutboundPolicy {
    let load = backend::balance_p2c::PeakEwma {
        default_rtt: duration(BALANCER_DEFAULT_RTT),
        decay: duration(BALANCER_RTT_DECAY),
    };
    let path = format!("{}:{}", service.hostname(), port.number);
    let discovery = backend::EndpointDiscovery {
        kind: Some(backend::endpoint_discovery::Kind::Dst(
            backend::endpoint_discovery::DestinationGet { path },
        )),
    };
    let balancer = backend::BalanceP2c {
        discovery: Some(discovery),
        load: Some(backend::balance_p2c::Load::PeakEwma(load)),
    };
    let service = resource(service, port.number.into());
    let backend = Backend {
        metadata: Some(service.clone()),
        queue: queue(),
        kind: Some(backend::Kind::Balancer(balancer)),
    };
    policy(service, &backend, "http", "opaq")
}

/// To an address that is neither a service nor a pod: in the clear.
pub(super) fn to_elsewhere(address: SocketAddr) -> OutboundPolicy {
    const NAME: &str = "egress-fallback";
    let endpoint = WeightedAddr { addr: Some(address.into()), weight: 1, ..Default::default() };
    let backend = Backend {
        metadata: Some(by_default(NAME)),
        queue: queue(),
        kind: Some(backend::Kind::Forward(endpoint)),
    };
    policy(by_default(NAME), &backend, NAME, NAME)
}

/// Detects HTTP and sends everything to one backend.
fn policy(metadata: Metadata, backend: &Backend, http: &str, opaque: &str) -> OutboundPolicy {
    let routes = vec![outbound::HttpRoute {
        metadata: Some(by_default(http)),
        rules: vec![http_route::Rule {
            matches: vec![every_path()],
            backends: Some(http_route::Distribution {
                kind: Some(http_route::distribution::Kind::FirstAvailable(
                    http_route::distribution::FirstAvailable {
                        backends: vec![http_route::RouteBackend {
                            backend: Some(backend.clone()),
                            ..Default::default()
                        }],
                    },
                )),
            }),
            ..Default::default()
        }],
        ..Default::default()
    }];
    let detect = proxy_protocol::Detect {
        timeout: duration(DETECT_TIMEOUT),
        opaque: Some(proxy_protocol::Opaque { routes: vec![opaque_route(backend, opaque)] }),
        http1: Some(proxy_protocol::Http1 { routes: routes.clone(), failure_accrual: None }),
        http2: Some(proxy_protocol::Http2 { routes, failure_accrual: None }),
    };
    OutboundPolicy {
        metadata: Some(metadata),
        protocol: Some(outbound::ProxyProtocol {
            kind: Some(proxy_protocol::Kind::Detect(detect)),
        }),
    }
}

fn opaque_route(backend: &Backend, name: &str) -> OpaqueRoute {
    OpaqueRoute {
        metadata: Some(by_default(name)),
        rules: vec![opaque_route::Rule {
            filters: Vec::new(),
            backends: Some(opaque_route::Distribution {
                kind: Some(opaque_route::distribution::Kind::FirstAvailable(
                    opaque_route::distribution::FirstAvailable {
                        backends: vec![opaque_route::RouteBackend {
                            backend: Some(backend.clone()),
                            filters: Vec::new(),
                        }],
                    },
                )),
            }),
        }],
    }
}

/// The endpoints behind a port.
pub(super) fn endpoints(port: &Port) -> Update {
    if port.endpoints.is_empty() {
        let none = destination::NoEndpoints { exists: true };
        return Update { update: Some(update::Update::NoEndpoints(none)) };
    }
    let endpoint = |it: &super::super::topology::Endpoint| {
        meshed(SocketAddr::new(it.address, it.port), &it.identity)
    };
    let set = WeightedAddrSet {
        addrs: port.endpoints.iter().map(endpoint).collect(),
        metric_labels: HashMap::new(),
    };
    Update { update: Some(update::Update::Add(set)) }
}

/// A pod with a proxy: mutual TLS, HTTP as HTTP/2, by the proxy's own port.
fn meshed(address: SocketAddr, identity: &Identity) -> WeightedAddr {
    let name = tls_identity::DnsLikeIdentity { name: identity_name(identity) };
    let transport = protocol_hint::OpaqueTransport { inbound_port: PORTS.inbound.into() };
    WeightedAddr {
        addr: Some(address.into()),
        weight: WEIGHT,
        tls_identity: Some(TlsIdentity {
            strategy: Some(tls_identity::Strategy::DnsLikeIdentity(name.clone())),
            server_name: Some(name),
        }),
        protocol_hint: Some(ProtocolHint {
            protocol: Some(protocol_hint::Protocol::H2(protocol_hint::H2 {})),
            opaque_transport: Some(transport),
        }),
        http2: Some(Http2ClientParams {
            keep_alive: Some(http2_client_params::KeepAlive {
                interval: duration(KEEP_ALIVE_INTERVAL),
                timeout: duration(KEEP_ALIVE_TIMEOUT),
                while_idle: true,
            }),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// Of a service: nothing beyond its policy.
pub(super) fn service_profile(service: &Service) -> DestinationProfile {
    DestinationProfile {
        fully_qualified_name: service.hostname(),
        retry_budget: Some(retry_budget()),
        parent_ref: Some(resource(service, 0)),
        ..Default::default()
    }
}

/// Of an address that no service has; of a pod, with its identity.
pub(super) fn endpoint_profile(
    address: SocketAddr,
    identity: Option<&Identity>,
) -> DestinationProfile {
    let plain =
        || WeightedAddr { addr: Some(address.into()), weight: WEIGHT, ..Default::default() };
    DestinationProfile {
        retry_budget: Some(retry_budget()),
        endpoint: Some(identity.map_or_else(plain, |identity| meshed(address, identity))),
        ..Default::default()
    }
}

fn retry_budget() -> RetryBudget {
    RetryBudget {
        retry_ratio: 0.2,
        min_retries_per_second: 10,
        ttl: duration(Duration::from_secs(10)),
    }
}

/// A port that lets in these identities, proven by mutual TLS, and nobody else.
pub(super) fn server(identities: &[&Identity]) -> Server {
    let identities = identities
        .iter()
        .map(|identity| inbound::Identity { name: identity_name(identity) })
        .collect();
    let clients = authn::permit_mesh_tls::Clients::Identities(
        authn::permit_mesh_tls::PermitClientIdentities { identities, suffixes: Vec::new() },
    );
    let permit = authn::Permit::MeshTls(authn::PermitMeshTls { clients: Some(clients) });
    server_of(permit, "bench")
}

/// A port that lets in everybody: the proxy's own administration.
pub(super) fn open_server() -> Server {
    let permit = authn::Permit::Unauthenticated(authn::PermitUnauthenticated {});
    server_of(permit, "admin")
}

fn server_of(permit: authn::Permit, name: &str) -> Server {
    let networks = ["0.0.0.0/0", "::/0"].map(|network| {
        let network: IpNet = network.parse().expect("a literal network");
        Network { net: Some(network.into()), except: Vec::new() }
    });
    let labels = |kind: &str| {
        [("group", "policy.linkerd.io"), ("kind", kind), ("name", name)]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into()
    };
    let policy = Resource {
        group: "policy.linkerd.io".to_owned(),
        kind: "authorizationpolicy".to_owned(),
        name: name.to_owned(),
        ..Default::default()
    };
    let authorization = Authz {
        networks: networks.to_vec(),
        authentication: Some(Authn { permit: Some(permit) }),
        labels: labels("authorizationpolicy"),
        metadata: Some(Metadata { kind: Some(metadata::Kind::Resource(policy)) }),
    };
    let route = inbound::HttpRoute {
        metadata: Some(by_default("default")),
        rules: vec![inbound::http_route::Rule { matches: vec![every_path()], filters: Vec::new() }],
        ..Default::default()
    };
    let detect = inbound::proxy_protocol::Detect {
        timeout: duration(DETECT_TIMEOUT),
        http_routes: vec![route],
        http_local_rate_limit: None,
    };
    Server {
        protocol: Some(inbound::ProxyProtocol {
            kind: Some(inbound::proxy_protocol::Kind::Detect(detect)),
        }),
        authorizations: vec![authorization],
        labels: labels("server"),
        server_ips: Vec::new(),
    }
}

fn every_path() -> HttpRouteMatch {
    let path = PathMatch { kind: Some(path_match::Kind::Prefix("/".to_owned())) };
    HttpRouteMatch { path: Some(path), ..Default::default() }
}

fn queue() -> Option<outbound::Queue> {
    let failfast_timeout = duration(QUEUE_FAILFAST_TIMEOUT);
    Some(outbound::Queue { capacity: QUEUE_CAPACITY, failfast_timeout })
}

fn by_default(name: &str) -> Metadata {
    Metadata { kind: Some(metadata::Kind::Default(name.to_owned())) }
}

fn resource(service: &Service, port: u32) -> Metadata {
    Metadata {
        kind: Some(metadata::Kind::Resource(Resource {
            group: "core".to_owned(),
            kind: "Service".to_owned(),
            name: service.name.clone(),
            namespace: service.namespace.clone(),
            section: String::new(),
            port,
        })),
    }
}

fn duration(duration: Duration) -> Option<prost_types::Duration> {
    duration.try_into().ok()
}
