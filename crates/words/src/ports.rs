//! Ports. Those of the data plane are Istio's, so that either mesh understands the other.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

/// Where the proxy takes connections that a pod opens, in the pod's namespace.
pub const OUTBOUND: u16 = 15001;
/// Where the proxy takes plain connections to a pod, in the pod's namespace.
pub const INBOUND: u16 = 15006;
/// Where HBONE is served; reached as it is, never redirected.
pub const HBONE: u16 = 15008;
/// Where the proxy answers a pod's DNS queries, in the pod's namespace.
pub const DNS_CAPTURE: u16 = 15053;
/// The proxy's TCP ports in every pod. None of them is a destination through the proxy.
pub const OF_PROXY: [u16; 3] = [OUTBOUND, INBOUND, HBONE];

/// The proxy's administration, on loopback.
pub const PROXY_ADMIN: u16 = 15000;
/// The proxy's metrics.
pub const PROXY_METRICS: u16 = 15020;
/// The proxy's readiness.
pub const PROXY_READINESS: u16 = 15021;

/// The control plane's xDS and certificate authority, in TLS.
pub const XDS: u16 = 15012;
/// The control plane's xDS without TLS, on loopback.
pub const PLAINTEXT_XDS: u16 = 15010;
/// The control plane's metrics and readiness.
pub const CONTROL_MONITORING: u16 = 15014;
/// The control plane's administration, on loopback.
pub const CONTROL_ADMIN: u16 = 9876;

/// The node agent's metrics and readiness, by default on loopback.
pub const NODE_MONITORING: u16 = 8000;

/// DNS servers listen here.
pub const DNS: u16 = 53;

/// A port on loopback.
pub fn on_loopback(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// A port on every address of both families.
pub fn everywhere(port: u16) -> SocketAddr {
    (Ipv6Addr::UNSPECIFIED, port).into()
}
