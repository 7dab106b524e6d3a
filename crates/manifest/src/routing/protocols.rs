//! What the ports of services are declared to speak: at some of them a route has no effect.

use std::collections::BTreeMap;

use ambit_model::http::service::Protocol;
use k8s_openapi::api::core::v1::Service;

use crate::istio::ServiceEntry;

/// Ports of protocols in which the server speaks first. Where nothing is declared they are bytes.
const SERVER_FIRST: [u16; 4] = [25, 53, 3306, 27017];

/// What the ports of a Service are declared to speak; none that are not.
pub fn service_protocols(service: &Service) -> BTreeMap<u16, Protocol> {
    let ports = service.spec.iter().flat_map(|spec| spec.ports.iter().flatten());
    let ports = ports.filter(|port| port.protocol.as_deref().unwrap_or("TCP") == "TCP");
    let declared = ports.filter_map(|port| {
        let number = u16::try_from(port.port).ok()?;
        Some((number, protocol(port.app_protocol.as_deref(), port.name.as_deref(), number)))
    });
    declared.filter(|(_, protocol)| *protocol != Protocol::default()).collect()
}

/// What the ports of a ServiceEntry are declared to speak; none that are not.
pub fn entry_protocols(entry: &ServiceEntry) -> BTreeMap<u16, Protocol> {
    let declared = entry.spec.ports.iter().filter_map(|port| {
        let number = u16::try_from(port.number).ok()?;
        let declared = Some(port.protocol.as_str()).filter(|protocol| !protocol.is_empty());
        Some((number, protocol(declared, Some(&port.name), number)))
    });
    declared.filter(|(_, protocol)| *protocol != Protocol::default()).collect()
}

/// What a port speaks: its declared protocol, else the first word of its name, else what is usual
/// at its number.
fn protocol(declared: Option<&str>, name: Option<&str>, number: u16) -> Protocol {
    let declared = declared.map(str::to_lowercase);
    let word = match declared.as_deref() {
        Some("kubernetes.io/h2c") => "http2",
        Some("kubernetes.io/ws") => "http",
        Some("kubernetes.io/wss") => "https",
        Some(declared) => declared,
        None => match name.unwrap_or_default() {
            name if name == "grpc-web" || name.starts_with("grpc-web-") => "grpc-web",
            name => name.split('-').next().unwrap_or_default(),
        },
    };
    match word {
        "http" | "grpc-web" => Protocol::Http,
        "http2" | "h2c" | "grpc" => Protocol::Http2,
        "https" | "tls" => Protocol::Tls,
        "tcp" | "mongo" | "mysql" | "redis" => Protocol::Tcp,
        _ if SERVER_FIRST.contains(&number) => Protocol::Tcp,
        _ => Protocol::Detect,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ports_protocol_is_declared_named_or_usual() {
        use Protocol::{Detect, Http, Http2, Tcp, Tls};
        for (declared, name, number, expected) in [
            (None, None, 80, Detect),
            (None, Some("http"), 80, Http),
            (None, Some("http-web"), 80, Http),
            (None, Some("httpx"), 80, Detect),
            (None, Some("grpc-web-a"), 80, Http),
            (None, Some("grpc-a"), 80, Http2),
            (Some("grpc"), Some("tcp"), 80, Http2),
            (Some("kubernetes.io/h2c"), None, 80, Http2),
            (Some("kubernetes.io/ws"), None, 80, Http),
            (Some("kubernetes.io/wss"), None, 80, Tls),
            (Some("HTTPS"), None, 80, Tls),
            (Some("example.com/own"), Some("http"), 80, Detect),
            (None, Some("mysql"), 80, Tcp),
            (None, Some("db"), 3306, Tcp),
            (None, Some("http"), 3306, Http),
        ] {
            assert_eq!(
                protocol(declared, name, number),
                expected,
                "{declared:?} {name:?} {number}"
            );
        }
    }
}
